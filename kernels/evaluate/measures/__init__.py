"""What is measured beside correctness and time: memory, launches, machine code, counters, limits."""
