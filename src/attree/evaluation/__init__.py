"""How well do these methods explain this model on these targets?"""
