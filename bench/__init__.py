"""What `make bench` runs: each measure beside the bare client, in one run on one machine."""
