"""Functions in C++ for the CPU, which the machine's compiler builds when they are first needed."""
