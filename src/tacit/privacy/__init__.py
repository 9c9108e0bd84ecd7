"""Privacy accounting: accountants, the ledger, planning, and the guarantees of a run.

Nothing is imported here, because `dp_accounting` takes a second to import and runs without noise do not need it.
"""
