"""How do several processes work as one job and end as one?"""
