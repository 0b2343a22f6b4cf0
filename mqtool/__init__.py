"""The command line of mqtool: shows what `recover` decides, and asks before it changes anything."""

from recover import version as version
