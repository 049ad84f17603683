"""What people write to say when: cron expressions and phrases. Uses words/."""
