#include "../../cpp/src/text_stream.h"

#include "check.h"

using dflash2::TextStream;

namespace {

const std::string replaced = "\xEF\xBF\xBD";

void test_text_passes_at_once() {
    TextStream text({});
    CHECK(text.push("Hello") == "Hello");
    CHECK(text.push(" you") == " you");
    CHECK(text.finish().empty());
    CHECK(!text.stopped());
}

void test_characters_stay_whole() {
    TextStream text({});
    CHECK(text.push("\xF0\x9F").empty());
    CHECK(text.push("\x98").empty());
    CHECK(text.push("\x80!") == "\xF0\x9F\x98\x80!");
    CHECK(text.push("\xC3").empty());
    CHECK(text.finish() == replaced);
}

// One U+FFFD for each maximal part that begins a character, as Python's decoder does
void test_bytes_that_are_no_text_are_replaced() {
    CHECK(TextStream({}).push("a\xFFz") == "a" + replaced + "z");
    CHECK(TextStream({}).push("\xC0\xAF") == replaced + replaced);                 // overlong
    CHECK(TextStream({}).push("\xED\xA0\x80") == replaced + replaced + replaced);  // surrogate
    CHECK(TextStream({}).push("\xE2\x82z") == replaced + "z");                     // cut character
    CHECK(TextStream({}).push("\xF4\x90\x80\x80") == replaced + replaced + replaced + replaced);
}

void test_stop_string_in_one_piece() {
    TextStream text({ "END" });
    CHECK(text.push("the END of it") == "the ");
    CHECK(text.stopped());
    CHECK(text.push("more").empty());
    CHECK(text.finish().empty());
}

void test_stop_string_over_pieces_is_held_back() {
    TextStream text({ "</s>" });
    CHECK(text.push("ab<") == "ab");
    CHECK(text.push("/").empty());
    CHECK(text.push("s").empty());
    CHECK(text.push("x") == "</sx");
    CHECK(text.push("</").empty());
    CHECK(text.push("s>tail").empty());
    CHECK(text.stopped());
}

void test_what_only_began_like_a_stop_string_comes_at_the_end() {
    TextStream text({ "stop" });
    CHECK(text.push("we st") == "we ");
    CHECK(text.finish() == "st");
}

void test_the_earliest_stop_string_wins() {
    TextStream text({ "later", "soon" });
    CHECK(text.push("x soon, later") == "x ");
}

void test_stop_string_that_begins_inside_itself() {
    TextStream text({ "aab" });
    CHECK(text.push("aa").empty());
    CHECK(text.push("a") == "a");
    CHECK(text.push("b").empty());
    CHECK(text.stopped());
}

void test_stop_string_beyond_ascii() {
    TextStream text({ "\xC3\xA9t\xC3\xA9" });
    CHECK(text.push("l'\xC3") == "l'");
    CHECK(text.push("\xA9t\xC3").empty());
    CHECK(text.push("\xA8") == "\xC3\xA9t\xC3\xA8");
    CHECK(!text.stopped());
}

}  // namespace

int main() {
    test_text_passes_at_once();
    test_characters_stay_whole();
    test_bytes_that_are_no_text_are_replaced();
    test_stop_string_in_one_piece();
    test_stop_string_over_pieces_is_held_back();
    test_what_only_began_like_a_stop_string_comes_at_the_end();
    test_the_earliest_stop_string_wins();
    test_stop_string_that_begins_inside_itself();
    test_stop_string_beyond_ascii();
}
