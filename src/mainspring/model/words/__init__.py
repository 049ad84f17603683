"""What people write, parsed and checked: names, durations, sizes, instants, timezones. Uses no other room."""
