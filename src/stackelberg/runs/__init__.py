"""What every run folder has, whatever is trained in it: records, progress, interruption, provenance."""
