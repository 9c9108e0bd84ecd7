"""Data as people have them: samples in any form, and tables, as the tensors of a task."""
