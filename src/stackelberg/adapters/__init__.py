"""Games in the training loops that people already run. Adapters know no method; methods know no framework."""
