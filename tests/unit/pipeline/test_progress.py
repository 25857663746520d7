"""The bar of text."""

from tinybert.pipeline.progress import text_progress_bar


def test_documents_a_second_stand_behind_the_bytes():
    with text_progress_bar("read", 100) as bar:
        bar.advance(30, documents=4000)
        bar.advance(20, documents=2000)
        bar.start_t -= 4
        assert (bar.n, bar.documents) == (50, 6000)
        assert 1400 < int(bar.format_dict["postfix"].removesuffix(" documents/s").replace(",", "")) <= 1500
        assert "50.0/100 " in str(bar) and "documents/s" in str(bar)
