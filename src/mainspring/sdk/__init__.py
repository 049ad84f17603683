"""What an application imports: App, Job, Task, current_task(). The public names are in `mainspring`."""
