"""The words of the field, pure: parsing, rendering, planning, classifying. No I/O."""
