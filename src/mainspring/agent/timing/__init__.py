"""The timing wheel and the timer that turns it, on the clock that follows the database's. Uses no other room."""
