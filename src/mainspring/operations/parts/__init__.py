"""Parts: answers and computations in parts: pages in the order of names, slices that yield to the event loop."""
