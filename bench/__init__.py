"""What is measured: the workloads and their data. Knows nothing of how it is measured."""
