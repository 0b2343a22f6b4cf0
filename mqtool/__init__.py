"""The command line of mqtool: shows the results of `recover`, and asks before it changes anything."""

from recover import version as version
