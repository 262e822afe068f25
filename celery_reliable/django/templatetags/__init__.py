"""What the templates of the pages need."""
