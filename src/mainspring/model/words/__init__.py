"""What people write, parsed once: names, durations, sizes, instants, timezones. Uses no other room."""
