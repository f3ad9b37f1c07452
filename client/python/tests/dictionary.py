"""A random workload against a dictionary, whatever the keys are."""

import random


def agree(test, db, steps, draw, others=()):
    """Draws operations on keys with values, by `draw(chance, step)`, and compares each answer with that of a dictionary, which it returns.
    Each of `others` is drawn as often, too, and is called with the dictionary and the random numbers."""
    known, chance = {}, random.Random(7)
    for step in range(steps):
        key, value = draw(chance, step)
        kind = chance.randrange(6 + len(others))
        if kind == 0:
            db.put(key, value)
            known[key] = value
        elif kind == 1:
            test.assertIs(db.insert(key, value), key not in known)
            known.setdefault(key, value)
        elif kind == 2:
            test.assertIs(db.update(key, value), key in known)
            if key in known:
                known[key] = value
        elif kind == 3:
            test.assertIs(db.delete(key), known.pop(key, None) is not None)
        elif kind == 4:
            expected = known.get(key, b"none")
            test.assertIs(db.compare_and_swap(key, expected, value), key in known)
            if key in known:
                known[key] = value
        elif kind == 5:
            test.assertEqual(db.get(key), known.get(key))
        else:
            others[kind - 6](known, chance)
    return known
