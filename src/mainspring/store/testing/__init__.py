"""What `mainspring.testing` needs of PostgreSQL: databases that live as long as a test, and a clock that tests move.

Imports postgres/, embedded/ and tasks/. No process imports it.
"""
