"""Turns results into what a person or a program reads. Measures nothing."""
