"""Recurring schedules: every slot once, whatever restarts, and a missed one never silent.

`definition` says what a schedule is, `plan` what is to become of its due slots, `scheduler` waits for
them and has Redis settle them (lua/fire.lua), `ledger` writes down what Redis decided.
"""
