"""Write what agents report, many reports in one flush, fenced by token. Imports cluster/."""
