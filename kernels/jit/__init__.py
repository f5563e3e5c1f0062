"""From a source file and a shape to a loaded operator.

``spec`` names one specialisation, ``source`` assembles its text, ``build`` compiles
it, ``cache`` keeps the result, ``load`` hands it out once per process, and
``operator`` joins it to torch. Importing this package loads none of them.
"""
