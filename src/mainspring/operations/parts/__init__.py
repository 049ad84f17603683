"""Parts of answers: the views of tasks, pages in the order of names, slices that yield to the event loop."""
