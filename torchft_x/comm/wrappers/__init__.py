"""Process groups around other process groups, and the device mesh made of them."""
