"""The data the project makes itself: facts, articles that state them, a quiz on them, and task examples."""
