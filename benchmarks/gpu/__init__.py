"""One GPU's engine, without Ray and network: is it exact, and how near the card's limits?"""
