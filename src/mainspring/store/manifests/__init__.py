"""Which set of manifests, or which application, owns a job, a schedule or a calendar. Imports postgres/ alone."""
