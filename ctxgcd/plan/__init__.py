"""What runs would cost before any of them starts: views, device hours, disk, memory. Needs no data."""
