"""How a verb describes itself, and how words become values."""
