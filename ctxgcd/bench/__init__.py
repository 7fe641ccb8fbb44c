"""What the workflow's steps cost, each beside a plainly written reference in the same run."""
