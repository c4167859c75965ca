"""The benchmark's client: chats held with several servers, and what came of it. Knows no SGLang."""
