"""Tables, figures and progress: what people look at."""
