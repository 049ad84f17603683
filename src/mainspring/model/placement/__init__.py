"""Where work goes: which agent takes a task, how early it is armed, which server owns a segment. Uses words/."""
