@mcp @e2e
Feature: A coding agent at work with Toolcrib's tools
  I keep using the coding agent that I know. The tools of all my servers are simply there, each run may do what its
  profile says and nothing else, and afterwards I can read what was done. When something breaks, the agent is told, and
  nothing is left behind.

  Background:
    Given a project with a small program in it

  Scenario Outline: An agent reads a file and says what it thinks of it
    Given <agent> will read "doubling.py" and say "It adds two where it should double."
    When I run <agent> with "Have a look at doubling.py."
    Then the run finished
    And its last words are "It adds two where it should double."
    And the model was given the text of "doubling.py"
    And the audit log has 1 call of "workspace:read_file", allowed, with the outcome "ok"
    And the log tells of the same calls as the audit log
    And the log holds the tokens that the model's provider counted
    And nothing of the run is left, and my own settings are as they were

    Examples:
      | agent  |
      | claude |
      | codex  |
      | gemini |

  Scenario Outline: An agent writes a module and its test, and runs the tests
    Given Toolcrib runs
    And <agent> will write "halving.py" and its test, run the tests, and say "Halving works."
    When I run <agent> with "Write a module that halves numbers, with a test."
    Then the run finished
    And "halving.py" and "test_halving.py" are in the project as the model wrote them
    And the model was told that the tests passed
    And the audit log has 2 calls of "workspace:write_file", allowed, with the outcome "ok"
    And the audit log has 1 call of "workspace:run_tests", allowed, with the outcome "ok"
    And the log tells of the same calls as the audit log
    And nothing of the run is left, and my own settings are as they were

    Examples:
      | agent  |
      | claude |
      | codex  |

    @soak
    Examples: the other program
      | agent  |
      | gemini |

  Scenario Outline: An agent that only reads reviews a change, and cannot make one
    Given a change in the project that nobody has reviewed
    And <agent> will look at the change, then try to write "review.txt" in every way it knows, and say "I may only look."
    When I run <agent> with "Review my change." and the profile "read-only"
    Then the run finished
    And the model was given the change
    And the model was not offered "workspace_write_file"
    And none of its attempts was left unanswered
    And nothing in the project has changed
    And the audit log has 1 call of "workspace:project_diff", allowed, with the outcome "ok"
    And the audit log has no call of "workspace:write_file"
    And nothing of the run is left, and my own settings are as they were

    Examples:
      | agent  |
      | claude |
      | codex  |
      | gemini |

  Scenario Outline: An agent that I trust writes in each of these ways
    Given <agent> will write in every way it knows, and say "All written."
    When I run <agent> with "Write something." and the profile "trusted"
    Then the run finished
    And each of its ways has written a file
    And the audit log has 1 call of "workspace:write_file", allowed, with the outcome "ok"
    And nothing of the run is left, and my own settings are as they were

    Examples:
      | agent  |
      | claude |

    @soak
    Examples: the other programs
      | agent  |
      | codex  |
      | gemini |

  Scenario Outline: A reviewer may write down a review, and is refused a write anywhere else
    Given Toolcrib runs
    And a profile "reviewer" that reads everything and writes below "reviews"
    And <agent> will write "reviews/today.md", then "doubling.py", and say "The second one was refused."
    When I run <agent> with "Review, and mend it while you are at it." and the profile "reviewer"
    Then the run finished
    And only "reviews/today.md" has changed in the project
    And the model was told that it may not write there
    And the audit log has 1 call of "workspace:write_file", allowed, with the outcome "ok"
    And the audit log has 1 call of "workspace:write_file", denied, with the outcome "denied"
    And the log counts 1 denial
    And nothing of the run is left, and my own settings are as they were

    Examples:
      | agent  |
      | claude |

    @soak
    Examples: the other programs
      | agent  |
      | codex  |
      | gemini |

  Scenario Outline: A conversation goes on in a second run
    Given Toolcrib runs
    And <agent> will read "doubling.py" and say "It is the plus sign."
    And in the second run it will read "doubling.py" again and say "As I said before."
    When I run <agent> with "What is wrong with doubling.py?"
    And I go on in the same conversation with "Are you sure?"
    Then both runs finished
    And in the second run the model knew "What is wrong with doubling.py?" and "It is the plus sign."
    And the audit log shows the calls of both runs in one conversation
    And there are two logs, and the second says where it went on
    And nothing of the run is left, and my own settings are as they were

    Examples:
      | agent  |
      | claude |
      | codex  |
      | gemini |

  Scenario Outline: A server dies while it works on a call
    Given Toolcrib runs, with a server "ledger" of mine
    And <agent> will call the ledger, call it again, call it a third time, and say "I know what happened."
    When I run <agent> with "Keep the ledger.", and the ledger dies in the second call
    Then the run finished
    And the model was told of the second call that the server is gone
    And the third call was done by a new ledger
    And the audit log has 2 calls of "ledger:note", allowed, with the outcome "ok"
    And the audit log has 1 call of "ledger:note", allowed, with the outcome "unavailable"
    And nothing of the run is left, and my own settings are as they were

    Examples:
      | agent  |
      | claude |

    @soak
    Examples: the other programs
      | agent  |
      | codex  |
      | gemini |

  Scenario Outline: An agent is revoked while it works
    Given Toolcrib runs, with a server "ledger" of mine
    And <agent> will call the ledger, and go on calling it after it was revoked
    When I run <agent> with "Keep the ledger.", and remove its agent after the first call
    Then the run was stopped as "revoked", with exit code 12
    And only the first call reached the ledger
    And nothing of the run is left, and my own settings are as they were

    Examples:
      | agent  |
      | claude |
      | codex  |

    @soak
    Examples: the other program
      | agent  |
      | gemini |

  Scenario Outline: A run that is to go on without tools goes on when its agent is revoked
    Given Toolcrib runs, with a server "ledger" of mine
    And <agent> will call the ledger, call it again after it was revoked, and say "Then without the ledger."
    When I let <agent> go on without tools with "Keep the ledger.", and remove its agent after the first call
    Then the run finished
    And its last words are "Then without the ledger."
    And only the first call reached the ledger
    And the log warns that the tools are gone
    And nothing of the run is left, and my own settings are as they were

    Examples:
      | agent  |
      | claude |

    @soak
    Examples: the other programs
      | agent  |
      | codex  |
      | gemini |

  Scenario Outline: I stop a run with Ctrl-C
    Given <agent> will read "doubling.py" and then think for a long time
    When I run <agent> with "Have a look at doubling.py.", and press Ctrl-C while it thinks
    Then the run was stopped as "interrupted", with exit code 130
    And the audit log has 1 call of "workspace:read_file", allowed, with the outcome "ok"
    And nothing of the run is left, and my own settings are as they were

    Examples:
      | agent  |
      | claude |

    @soak
    Examples: the other programs
      | agent  |
      | codex  |
      | gemini |

  Scenario Outline: A run is killed, and the next one starts clean
    Given Toolcrib runs, with a server "ledger" of mine
    And <agent> will call the ledger and then think for a long time
    When I run <agent> with "Keep the ledger.", and it is killed while it thinks
    Then no process of the run is left
    And its token opens nothing any more
    And its log can be read, and shows that it was killed
    Given <agent> will call the ledger and say "Here I am again."
    When I run <agent> with "Keep the ledger."
    Then the run finished
    And the ledger saw one call of each run
    And nothing of the run is left, and my own settings are as they were

    Examples:
      | agent  |
      | claude |

    @soak
    Examples: the other programs
      | agent  |
      | codex  |
      | gemini |

  Scenario Outline: The tools work however the agent offers them to its model
    Given Toolcrib runs
    And <agent>, which offers tools <way>, will read "doubling.py" and list the folder in one turn, and say "Seen."
    When I run <agent> with "Look around."
    Then the run finished
    And the model was offered the tools <way>
    And the model was given the text of "doubling.py"
    And the audit log has 1 call of "workspace:read_file", allowed, with the outcome "ok"
    And the audit log has 1 call of "workspace:list_dir", allowed, with the outcome "ok"
    And the log tells of the same calls as the audit log
    And nothing of the run is left, and my own settings are as they were

    Examples:
      | agent  | way      |
      | claude | plain    |
      | claude | deferred |
      | codex  | plain    |
      | codex  | deferred |
      | codex  | code     |
      | gemini | plain    |
