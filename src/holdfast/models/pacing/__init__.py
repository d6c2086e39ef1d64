"""When a request may be sent: rate limits, the adaptive window, the circuit breaker, the queue, and retries."""
