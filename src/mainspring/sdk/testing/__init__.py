"""`mainspring.testing`: an application on a database of its own, with a clock that tests move."""
