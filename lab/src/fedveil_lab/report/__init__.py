"""Tables, figures, pages and progress displays of runs and audits."""
