"""The program as a whole, with a partner that plays a script."""

from helpers.tui_app import chat, play


def test_a_question_and_its_answer() -> None:
    async def go() -> None:
        async with chat("Hi there.") as d:
            await d.say("hello")
            assert d.said == [("user", "hello"), ("assistant", "Hi there.")]
            assert d.draft == ""
            print(d.status, d.notice)
            d.app.save_screenshot("/tmp/w/t3/a.svg")

    play(go)
