"""What is kept beside schedules: runs made at once, counts of those with an SLO, pings of those with an address."""
