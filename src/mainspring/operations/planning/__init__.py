"""Planning: operations on plan times: what was decided and why, what comes, what is missing, and filling it in."""
