"""The chats of the demo: what a user asks turn by turn, answered or not.

They cover what people ask a small model for, and each later turn leans on the answer before it,
so that it shares a prefix with what the server has already computed.
"""

from __future__ import annotations

from typing import NamedTuple


class Conversation(NamedTuple):
    """One user's side of a chat."""

    title: str
    turns: tuple[str, str, str]


CONVERSATIONS = (
    Conversation(
        "a story",
        (
            "Write the opening of a story about a lighthouse keeper who receives a letter "
            "addressed to the sea.",
            "Continue the story: what does the letter say?",
            "Now give the story a title and retell it in two sentences.",
        ),
    ),
    Conversation(
        "a Python function",
        (
            "Write a Python function that counts how often each word occurs in a text.",
            "Change the function so that it ignores case and punctuation.",
            "Write three tests for the changed function.",
        ),
    ),
    Conversation(
        "percentages",
        (
            "A jacket costs 80 euros and is reduced by 15 percent. What does it cost now? "
            "Show each step.",
            "And if the reduced price is then raised by 15 percent, is it 80 euros again?",
            "Explain in one paragraph why the two percentages do not cancel.",
        ),
    ),
    Conversation(
        "a packing list",
        (
            "Make a numbered list of ten things to pack for a weekend of hiking.",
            "Mark the items on the list that can be left out on a day without rain.",
            "Write the remaining items as one comma-separated line.",
        ),
    ),
    Conversation(
        "an e-mail",
        (
            "Write a polite e-mail to a neighbour whose dog barks every night.",
            "Make the e-mail shorter and more friendly.",
            "Write the neighbour's reply, in which she apologises and offers a solution.",
        ),
    ),
    Conversation(
        "how rain forms",
        (
            "Explain to a child of ten how rain forms.",
            "Which word in your explanation is the hardest? Explain that word as well.",
            "Now write three quiz questions about rain, with their answers.",
        ),
    ),
    Conversation(
        "SQL",
        (
            "A table named orders has the columns id, customer, amount and day. Write an SQL "
            "query for the total amount of each customer.",
            "Extend the query to show only customers with a total above 1000, largest first.",
            "Explain the query line by line.",
        ),
    ),
    Conversation(
        "tea and coffee",
        (
            "Compare tea and coffee in a table with the columns property, tea and coffee.",
            "Add a row about the time it takes to prepare them.",
            "Which of the two would you recommend before sleeping, and why?",
        ),
    ),
    Conversation(
        "a poem",
        (
            "Write a poem of eight lines about a train that crosses a bridge at night.",
            "Rewrite the poem so that every line begins with the word 'And'.",
            "Which line do you like best? Explain your choice.",
        ),
    ),
    Conversation(
        "a rectangle",
        (
            "A rectangle is 12 metres long and 5 metres wide. What are its area and its perimeter?",
            "How long is its diagonal? Explain the rule that you use.",
            "How do area, perimeter and diagonal change if both sides are doubled?",
        ),
    ),
    Conversation(
        "soup",
        (
            "Give me a simple recipe for potato soup, with ingredients and steps.",
            "Adapt the recipe for eight people and repeat the list of ingredients.",
            "One guest eats no milk products. What should I replace?",
        ),
    ),
    Conversation(
        "a shell script",
        (
            "Write a shell script that renames every .jpeg file in a folder to .jpg.",
            "Make the script print each name before and after, and ask before it starts.",
            "What happens if a file with the new name already exists? Fix the script.",
        ),
    ),
)
