"""Mutation testing: one fault at a time is planted into the code that decides; which do the quick tests not notice?"""
