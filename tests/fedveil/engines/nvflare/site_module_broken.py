"""A module of a site that cannot be imported, and whose error quotes what nobody should read."""

raise RuntimeError("age 47, diagnosis C50")
