"""Write what agents report, one batch per flush, fenced by token. Imports cluster/."""
