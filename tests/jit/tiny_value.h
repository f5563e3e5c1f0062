// A header of its own, so that a test can change it and nothing else.
#pragma once

constexpr int VALUE = 0;
