"""Between server and agent: channels over memory and WebSocket, the acknowledged link, the clock."""
