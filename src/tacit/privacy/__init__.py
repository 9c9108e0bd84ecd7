"""Privacy accounting: accountants, the ledger, planning, and the guarantees that a run can state.

Nothing is imported here, because `dp_accounting` takes a second to load and runs without noise do not need it.
"""
