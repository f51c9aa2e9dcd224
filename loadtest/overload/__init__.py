"""What is answered, and how soon, where more is asked than can be."""
