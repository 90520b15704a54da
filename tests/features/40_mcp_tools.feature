@mcp @e2e
Feature: A coding agent uses Toolcrib's tools
  I keep using the coding agent that I know. It has the tools of all my servers, each run may do what its profile
  allows and nothing else, and afterwards I can read what was done. When something breaks, the agent gets an error, and
  nothing is left behind.

  Background:
    Given a project with a small program in it

  Scenario Outline: An agent reads a file, and the conversation continues in a second run
    Given <agent>, which offers tools <way>, will read "doubling.py" and list the folder in one turn, and say "It is the plus sign."
    When I run <agent> with "What is wrong with doubling.py?"
    Then the run finished
    And its answer is "It is the plus sign."
    And the model was offered the tools <way>
    And the model received the text of "doubling.py"
    And the audit log has 1 call of "workspace:read_file", allowed, with the outcome "ok"
    And the audit log has 1 call of "workspace:list_dir", allowed, with the outcome "ok"
    And the log has the same calls as the audit log
    And the log has the tokens that the model's provider counted
    Given <agent> will read "doubling.py" again and say "As I said before."
    When I continue the conversation with "Are you sure?"
    Then the run finished
    And in the second run the model knew "What is wrong with doubling.py?" and "It is the plus sign."
    And the audit log shows the calls of both runs in one conversation
    And there are two logs, and the second has the session of the first
    And nothing of the run remains, and my settings are unchanged

    Examples:
      | agent  | way      |
      | claude | deferred |
      | codex  | code     |
      | gemini | plain    |

  Scenario Outline: The tools work however the agent offers them to its model
    Given Toolcrib runs
    And <agent>, which offers tools <way>, will read "doubling.py" and list the folder in one turn, and say "Seen."
    When I run <agent> with "Look around."
    Then the run finished
    And the model was offered the tools <way>
    And the model received the text of "doubling.py"
    And the audit log has 1 call of "workspace:read_file", allowed, with the outcome "ok"
    And the audit log has 1 call of "workspace:list_dir", allowed, with the outcome "ok"
    And the log has the same calls as the audit log
    And nothing of the run remains, and my settings are unchanged

    Examples:
      | agent  | way      |
      | claude | plain    |
      | codex  | plain    |
      | codex  | deferred |

    @soak
    Examples: the default ways
      | agent  | way      |
      | claude | deferred |
      | codex  | code     |
      | gemini | plain    |

  Scenario Outline: An agent writes a module and its test, and runs the tests
    Given Toolcrib runs
    And <agent> will write "halving.py" and its test, run the tests, and say "Halving works."
    When I run <agent> with "Write a module that halves numbers, with a test."
    Then the run finished
    And "halving.py" and "test_halving.py" are in the project as the model wrote them
    And the model was informed that the tests passed
    And the audit log has 2 calls of "workspace:write_file", allowed, with the outcome "ok"
    And the audit log has 1 call of "workspace:run_tests", allowed, with the outcome "ok"
    And the log has the same calls as the audit log
    And nothing of the run remains, and my settings are unchanged

    Examples:
      | agent  |
      | claude |

    @soak
    Examples: the other programs
      | agent  |
      | codex  |
      | gemini |

  Scenario Outline: A read-only agent reviews a change, and cannot make one
    Given an unreviewed change in the project
    And <agent> will look at the change, then try to write "review.txt" with all of its tools, and say "I may only look."
    When I run <agent> with "Review my change." and the profile "read-only"
    Then the run finished
    And the model received the change
    And the model was not offered "workspace_write_file"
    And each of its attempts got a result
    And nothing in the project has changed
    And the audit log has 1 call of "workspace:project_diff", allowed, with the outcome "ok"
    And the audit log has no call of "workspace:write_file"
    And nothing of the run remains, and my settings are unchanged

    Examples:
      | agent  |
      | claude |
      | codex  |
      | gemini |

  Scenario Outline: A trusted agent writes with all of its tools
    Given <agent> will write with all of its tools, and say "All written."
    When I run <agent> with "Write something." and the profile "trusted"
    Then the run finished
    And each of its tools has written a file
    And the audit log has 1 call of "workspace:write_file", allowed, with the outcome "ok"
    And nothing of the run remains, and my settings are unchanged

    Examples:
      | agent  |
      | claude |

    @soak
    Examples: the other programs
      | agent  |
      | codex  |
      | gemini |

  Scenario Outline: A reviewer may write a review, and nothing else
    Given Toolcrib runs
    And a profile "reviewer" that may read everything and write in "reviews"
    And <agent> will write "reviews/today.md", then "doubling.py", and say "The second one was refused."
    When I run <agent> with "Review it, and fix it while you are at it." and the profile "reviewer"
    Then the run finished
    And only "reviews/today.md" has changed in the project
    And the model was refused the second write
    And the audit log has 1 call of "workspace:write_file", allowed, with the outcome "ok"
    And the audit log has 1 call of "workspace:write_file", denied, with the outcome "denied"
    And the log counts 1 denial
    And nothing of the run remains, and my settings are unchanged

    Examples:
      | agent  |
      | claude |

    @soak
    Examples: the other programs
      | agent  |
      | codex  |
      | gemini |

  Scenario Outline: A server dies during a call
    Given Toolcrib runs with my server "ledger"
    And <agent> will call the ledger, call it again, call it a third time, and say "I know what happened."
    When I run <agent> with "Keep the ledger.", and the ledger dies in the second call
    Then the run finished
    And the model got an error for the second call
    And a new ledger got the third call
    And the audit log has 2 calls of "ledger:note", allowed, with the outcome "ok"
    And the audit log has 1 call of "ledger:note", allowed, with the outcome "unavailable"
    And nothing of the run remains, and my settings are unchanged

    Examples:
      | agent  |
      | claude |

    @soak
    Examples: the other programs
      | agent  |
      | codex  |
      | gemini |

  Scenario Outline: An agent is revoked during a run
    Given Toolcrib runs with my server "ledger"
    And <agent> will call the ledger, and call it again after it was revoked
    When I run <agent> with "Keep the ledger.", and remove its agent after the first call
    Then the run was stopped as "revoked", with exit code 12
    And only the first call reached the ledger
    And nothing of the run remains, and my settings are unchanged

    Examples:
      | agent  |
      | codex  |

    @soak
    Examples: the other programs
      | agent  |
      | claude |
      | gemini |

  Scenario Outline: A run continues without tools when its agent is revoked, if I ask for that
    Given Toolcrib runs with my server "ledger"
    And <agent> will call the ledger, call it again after it was revoked, then say "Then without the ledger."
    When I run <agent> even without tools with "Keep the ledger.", and remove its agent after the first call
    Then the run finished
    And its answer is "Then without the ledger."
    And only the first call reached the ledger
    And the log warns that the tools are unavailable
    And nothing of the run remains, and my settings are unchanged

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
    And nothing of the run remains, and my settings are unchanged

    Examples:
      | agent  |
      | claude |

    @soak
    Examples: the other programs
      | agent  |
      | codex  |
      | gemini |

  Scenario Outline: A run is killed, and the next one starts clean
    Given Toolcrib runs with my server "ledger"
    And <agent> will call the ledger and then think for a long time
    When I run <agent> with "Keep the ledger.", and it is killed while it thinks
    Then no process of the run is left
    And its token is no longer valid
    And its log is readable, and shows that it was killed
    Given <agent> will call the ledger and say "Here I am again."
    When I run <agent> with "Keep the ledger."
    Then the run finished
    And the ledger saw one call of each run
    And nothing of the run remains, and my settings are unchanged

    Examples:
      | agent  |
      | claude |

    @soak
    Examples: the other programs
      | agent  |
      | codex  |
      | gemini |
